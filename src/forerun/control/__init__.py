"""Online control of speculation: which draft tokens are worth verifying."""
