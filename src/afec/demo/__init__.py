"""`python -m afec.demo`: active forgetting on real images, minutes after cloning. docs/demo.md says what it shows."""
