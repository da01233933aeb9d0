"""Names and directory structures of dumps: one package per layout, with writer and reader side by side."""
