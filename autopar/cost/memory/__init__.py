"""What a rank holds, over time.

timeline        bytes at each op, and where they are most
lifetimes       which memory a program takes, from which op to which
buffers         pieces of memory
collectives     what collectives take while they are under way
kernel_results  where kernels put their results
peak_rank       the rank that holds most
"""
