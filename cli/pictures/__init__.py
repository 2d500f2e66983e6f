"""Pictures as SVG files. matplotlib draws them and is imported only when a picture is asked for."""
