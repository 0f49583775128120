"""The contract of an environment: one text episode, written once, stepped in two faces.

An author subclasses :class:`TextEnv`, gives it ``tasks`` and writes ``begin`` (the first
observation) and ``turn`` (what an action leads to). The base class owns seeding, the choice of the
task, order, the turn limit, snapshots, and both faces: Gymnasium's ``reset``/``step``, and the
asynchronous ``areset``/``astep`` that rollouts use. Tokens do not exist here.
"""
