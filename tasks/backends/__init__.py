"""Vendors, one a file, behind the Protocols of `protocols`; `wiring` alone picks among them."""
