"""Publishing into Phoenix: the desired state, the state that is there, and posting only the difference.

``desired`` says what Phoenix shall show, ``spans`` what of a trial's calls, ``outgoing`` what may leave at all.
``traces`` is the form in which spans are sent, ``phoenix`` speaks to the server, ``reconcile`` and, within an
experiment, ``runs`` bring the two states together.
"""
