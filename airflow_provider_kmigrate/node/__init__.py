"""`kmigrate-node`, the agent on the machines: its one file, and the commands that install it and check it (`command`)."""
