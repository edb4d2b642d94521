"""Students with several rejections: their F, heads without data, and what a query costs."""
