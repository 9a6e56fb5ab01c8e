"""What is set up once in a process: EP groups, processes that meet, the transport, poison."""
