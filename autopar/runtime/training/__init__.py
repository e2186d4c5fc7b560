"""Training.

opening         opens a trainer
trainer         keeps the state, runs a step per batch
step_plan       what a step runs for batches of certain shapes
rates           learning rates
training_state  what a training is left with and taken up from
checkpoints     written at once or beside it, and gone on from
saving          a save beside the training
"""
