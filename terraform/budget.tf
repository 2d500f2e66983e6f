# The last net: a message when the account's month costs more than was meant. It stops nothing.

resource "aws_budgets_budget" "month" {
  count = var.alarm_usd_per_month > 0 ? 1 : 0

  name         = "${var.name}-month"
  budget_type  = "COST"
  time_unit    = "MONTHLY"
  limit_amount = tostring(var.alarm_usd_per_month)
  limit_unit   = "USD"

  dynamic "notification" {
    for_each = {
      ACTUAL     = 80
      FORECASTED = 100
    }

    content {
      notification_type          = notification.key
      comparison_operator        = "GREATER_THAN"
      threshold                  = notification.value
      threshold_type             = "PERCENTAGE"
      subscriber_email_addresses = var.alarm_emails
      subscriber_sns_topic_arns  = var.alarm_topic_arns
    }
  }

  lifecycle {
    precondition {
      condition     = length(var.alarm_emails) + length(var.alarm_topic_arns) > 0
      error_message = "An alarm that reaches nobody is none: give alarm_emails or alarm_topic_arns."
    }
  }
}
