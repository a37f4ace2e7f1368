"""Many machines in one process: the real agents, with their ranks scripted.

Real: each agent's HTTP server on a socket of its own, its authentication, registration, heartbeats, epochs,
incarnations and fences, code checkouts from S3 or neighbours, restore sources, and shards that move between machines.

Scripted, since 9,600 processes with torch do not fit on a desk: the rank processes (no process: a timer that sends the
datagrams of a rank), their stacks, the bytes of their checkpoints (an agent reports which shards it holds; only those
that move become files), uploads to S3, and the detectors that look at the host, which all machines here share.
"""
