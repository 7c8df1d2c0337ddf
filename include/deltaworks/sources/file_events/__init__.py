"""Objects announced through a queue: the relay keeps them in a file event log, streams read it by `seq`."""
