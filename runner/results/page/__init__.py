"""The report page: pictures, tables and the words around them."""
