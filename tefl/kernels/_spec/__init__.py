"""Behind ``tefl.kernels.spec``: the rules, the backends' trees, how their files load, and what is checked."""
