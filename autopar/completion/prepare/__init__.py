"""What is done to a program before it is completed.

split_fused_weights     a fused weight of unequal parts becomes one parameter per part
sections                fused dimensions that are only used in parts
common_subexpressions   what is moved in the same way is moved once
hold_weights            what a loop reads of weights is brought to it in front of it
renew_views             a view of a parameter is taken again in each phase
"""
