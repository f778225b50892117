"""The main job on networks that people have, each answer judged by an evaluator of its own.

`networks` fetches and makes the models, `modules` holds those of random weights, `inputs` makes
what they are fed. `rounded` rewrites an exported model so that its FP16 can be computed in FP32,
`judge` measures it on copies and on fresh samples, `table` keeps the rows. `__main__` runs them.
"""
