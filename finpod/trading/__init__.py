"""Trading: orders, fills, costs and the accounts they change."""
