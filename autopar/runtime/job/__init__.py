"""The processes of a job.

launcher    starts ranks on this host, for one run
torchrun    how it is started, and what it says
processes   who a process is, and the store
device      where it computes
world       the process group of all ranks
messages    texts, by way of the store
serving, reaching       the store, from both ends
siblings, parent        other processes of this host
preparing               what rank 0 prepares for all
patience, limited       how long ranks wait
closing                 what is closed in the end
"""
