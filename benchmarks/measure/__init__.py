"""How measuring is done, whatever is measured."""
