//! Views of an analysis: flame graphs, text, folded stacks.
