"""`stayfinite doctor DIR`: what a project holds, what each part says, what they say together, and what to do.

inventory -> examine (within a budget) -> compare -> plan; resume and checklist answer two narrower questions from the
same examination.
"""
