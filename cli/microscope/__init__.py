"""The page of `gymnast view`: a run as one HTML file, or as a page that follows it."""
