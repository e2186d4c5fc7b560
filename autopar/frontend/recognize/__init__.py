"""Recognition: what a file spells out as many ops becomes the one op that it is.

ONNX has no RMS norm, no SiLU, and until lately no layer norm and no attention, so exporters write
them as arithmetic. Each op costs a call and passes over memory.

    patterns    what is recognized, as what: a row for each
    algebra     formulas as text, and where a program computes them
    attention   attention, whose scores are masked, scaled and shared by heads in many ways
    masks       what is added to scores, or takes their place
    first_key   whether every query sees a key
    dataflow    what makes and reads values, and which are known numbers
    recognize   the pass
"""

from autopar.frontend.recognize.recognize import Recognize

__all__ = ["Recognize"]
