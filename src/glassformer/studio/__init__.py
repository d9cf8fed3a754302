"""The studio: a page on this machine that shows runs while they train and looks inside them.

It shares nothing with training but the run folder: it reads what a run writes, starts trainings as
processes of their own, and stops them by a signal. `app.create_app` is the whole of it without a socket.
"""
