"""Plain attention functions under the suite: signatures, the adaptor, what a function supports, the author's terms."""
