"""What only the pages of the site show, and how they are made; nothing else imports it."""
