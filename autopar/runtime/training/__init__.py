"""Training.

opening         opens a trainer
trainer         keeps the state, and does whatever users ask of it
stepping        runs a step per batch
step_plan       what a step runs for batches of certain shapes
step_plans      which of these fits a batch
rates           learning rates
training_state  what a training is left with and taken up from
checkpointed    its state as checkpoints have it
checkpoints     written at once or beside it, and gone on from
saving          a save beside the training
"""
