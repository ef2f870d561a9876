"""What `sluice doctor` looks at: the machine, the place, the stores and the model.

Every check is a function that returns findings and changes nothing: no directory is made, no
schema migrated. The embedded stores of a running server are asked through their sockets; where
none runs they are started for the moment, if a first start has made them.

What is asked for by name, `sluice doctor --audit`, sends requests to a server that runs.
"""
