"""Model architectures, one a file, and how Hugging Face directories become running models."""
