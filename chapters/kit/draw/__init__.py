"""What the site's pages show: pictures drawn from IR, plots drawn from results files, tables of the course."""
