"""Records, texts and gaps: public files as people bring them, from the file to the answer."""
