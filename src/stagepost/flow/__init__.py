"""What travels: the envelope, its call stack and ids, the codec, and the context a handler is given."""
