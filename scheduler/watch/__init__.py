"""What the scheduler notes of its work for whoever explains it: times and counts, no decisions.

Nothing here may change what is run. What is noted costs a few operations at a change of a
request's state, or at a step, and none a row.
"""
