"""From pins to a plan, by propagation.

propagation             pins through the factor rules, to a fixed point
local_search            each op takes what is cheapest, given its neighbours
shift                   neighbouring ops change together
deferred_reductions     how far pending sums flow
reduce_before_scatter   sums of pieces before pieces are scattered
shared_reductions       pending sums that meet are reduced once
solve                   all of that, in order
"""
