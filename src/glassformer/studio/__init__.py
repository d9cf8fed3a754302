"""Local web page that shows runs while they train, and inspects them.

The studio shares only the run folder with training: it reads the files of a run, starts trainings as separate
processes, and stops them by a signal. `app.create_app` is the whole application without a socket.
"""
