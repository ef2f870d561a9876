"""How the next token is drawn: parameters in columns by slot, and no loop over rows.

On a CPU all of it; on a GPU its tables, while `engine.kernels` change the logits and draw.
"""
