"""Contracts only: what the other packages say to each other. Imports nothing of ours, nor torch.

Import from the module that owns a name: `from esper.leyline.stages import Stage`.

    stages     life of a seed          alpha      blending in
    slots      where seeds grow        actions    the eight heads
    signals    a host from outside     reports    seeds, episodes, rounds
    rewards    inputs and constants    payloads   what events carry
    telemetry  envelope, event table   tasks      hosts, data, presets
    config     job structs             jobs       merging and checking
    errors     the error tree          manifest   run.json
    live       the websocket protocol  messages   within a round
    streams    seeds of random streams legality   which action when
"""
