"""Publishing into Phoenix: the desired state, the state that is there, and posting only the difference.

``desired`` says what Phoenix shall show, ``outgoing`` what may leave at all, ``traces`` what a trial's trace is,
``phoenix`` speaks to the server, ``reconcile`` brings the two states together.
"""
