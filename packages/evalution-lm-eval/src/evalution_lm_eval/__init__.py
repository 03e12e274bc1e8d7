"""lm-evaluation-harness and Evalution: any engine as its model, any of its tasks as a suite."""
