"""What the losses of microbatches are divided by, so that they make the loss of their batch.

terms         the means and sums that a loss consists of
additive      whether sums of microbatches add up to that of the batch
denominators  placeholders for what terms are divided by, in captured graphs
averaging     which of these the whole batch decides, and the weights of microbatches
totals        the ops that compute them
"""
