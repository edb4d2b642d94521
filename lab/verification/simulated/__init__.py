"""A simulated cluster: virtual time, processes that fail, a database and a job engine, all from one seed.

The worker's own code runs in it: heartbeats, peers, takeovers, the reconciler and the durable steps. Each
thread of a process is a greenlet, which gives way at every statement, so any two may interleave there.
"""
