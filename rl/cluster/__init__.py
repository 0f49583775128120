"""Where the processes of a run are placed: all on this machine, or on the machines of a cluster."""
