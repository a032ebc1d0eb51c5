"""Report pages and figures: colours, the frame of HTML pages, matplotlib."""
