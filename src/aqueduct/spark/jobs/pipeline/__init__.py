"""``aqueduct pipeline``: devices, a gateway, ingest, two streaming queries, tables and a report.

::

    devices ==channels==> gateway ==producer==> ingest server --> readings (table)
    (a process)           (a process)           (a process)   --> windows  (table) --> report

Devices send over channels of all three modes, through a network that loses packets. The gateway
forwards what arrives, and from there on everything is stored, and in the tables, exactly once.
"""
