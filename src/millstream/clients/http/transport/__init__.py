"""HTTP/1.1 connections and pools."""
