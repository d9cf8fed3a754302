"""Local web page that shows runs while they train, and inspects them.

The studio and a training share only the run folder. The studio reads its files, starts trainings as separate
processes, and stops them by a signal. `app.create_app` returns the whole application without a socket.
"""
