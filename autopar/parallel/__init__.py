"""A module that runs in parallel under autograd, between the user's own loss and optimizer.

pmodel = autopar.parallelize(model, example_inputs, mesh="dp=2,tp=4")

split       a rank's program in two: forward, and backward
wiring      what a program reads of a module and of a call, and what it gives back
cut         where the first of them was cut into stages
variant     one compiled program of a module: for a mode and the shapes of a batch, or all
sized       what a variant runs in calls of the same sizes
autograd    a call as autograd sees it
opening     which sizes of calls stay open
shards      parameters: cut, gathered, loaded, clipped
calls       what a call of a module is
telling     what ranks tell of calls
compiling   compiles a module for a call
runner      the variants of a module, compiled when they are first needed
module      what `parallelize` returns
instance    makes that of a rank
job         this process among those of the mesh
watching    what watches over the ranks that modules share
api         `parallelize`
"""

from autopar.parallel.api import parallelize
from autopar.parallel.module import ParallelModule

__all__ = ["ParallelModule", "parallelize"]
