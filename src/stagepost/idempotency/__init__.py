"""Pure decisions about work that may have been done before."""
