"""One suite on one session: requests out, answers in, and no answer lost, doubled or made up."""
