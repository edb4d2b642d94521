"""The laboratory: what measures the product. No part of the product imports it; see README.md."""
