"""Pure functions from DataFrames to DataFrames. They read nothing, write nothing and collect nothing."""
