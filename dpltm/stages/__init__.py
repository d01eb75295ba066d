"""What generate, select, train and the other verbs do: values in, values out, and no file."""
